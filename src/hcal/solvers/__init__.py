"""Solvers: a safeguarded temperature search, L-BFGS and Newton for the convex families, proximal gradient.

Nothing is imported here: each method takes the one it needs.
"""
