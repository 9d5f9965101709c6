"""Solvers: a safeguarded temperature search, L-BFGS and Newton for families of maps, and training by Adam.

Nothing is imported here; each method imports the solver that it needs.
"""
