from hcal.io import Request, read, batches as _b
class Columns:
    def __init__(self, scores=None,label=None,id=None,group=None,weight=None): self.d=dict(scores=scores,label=label,id=id,group=group,weight=weight)
def _r(kind=None, labels=None, columns=None, classes=None, score=None):
    return Request(**(columns.d if columns else {}), input=kind, labels=None if labels is None else __import__('pathlib').Path(labels), classes=None if classes is None else tuple(classes), option_score=score)
def read_data(path, *, part="test", **k): return read(path, _r(**k), part=part)
def batches(s, *, rows=None, part="test", order=None, **k): return _b(s, _r(**k), rows=rows, part=part, order=order)
