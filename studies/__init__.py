"""Programs that make pages of docs and files of results: the paper, theory, boards, coverage.

Not in the wheel: the package never imports them. ``python -m studies --help`` lists those of the paper's
study; each other module is a program of its own.
"""
