import sys, cProfile, pstats, time
sys.argv=["hcal"]+sys.argv[1:]
from hcal.cli.app import app
import hcal.cli.measure, hcal.reporting
pr=cProfile.Profile(); t=time.process_time()
try:
    pr.runcall(app, standalone_mode=False)
except SystemExit: pass
print("cpu",time.process_time()-t)
pstats.Stats(pr).sort_stats('cumtime').print_stats(60)
