import torch, numpy as np, time
from torch.profiler import profile, ProfilerActivity
from hcal.objective.loss import HCalibrationLoss
for n,k in ((5000,10),(5000,100)):
    rng=np.random.default_rng(0); x=torch.log_softmax(torch.from_numpy(rng.normal(0,3,(n,k)).astype(np.float32)),1).cuda(); y=torch.from_numpy(rng.integers(0,k,n)).cuda()
    p=x.exp().requires_grad_(); L=HCalibrationLoss(check=False)
    def f():
        p.grad=None; L(p,y).backward()
    for _ in range(5): f()
    torch.cuda.synchronize(); t=time.perf_counter()
    for _ in range(100): f()
    torch.cuda.synchronize(); print(n,k,'loss us',(time.perf_counter()-t)*1e4)
    t=time.perf_counter()
    for _ in range(100): torch.sort(p.detach().reshape(-1))
    torch.cuda.synchronize(); print('sort us',(time.perf_counter()-t)*1e4)
    with profile(activities=[ProfilerActivity.CUDA,ProfilerActivity.CPU]) as pr:
        for _ in range(10): f()
        torch.cuda.synchronize()
    print(pr.key_averages().table(sort_by='cuda_time_total',row_limit=30,max_name_column_width=50))
