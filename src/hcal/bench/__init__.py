"""Tasks × methods × metrics into one results file; its tables and figures.

Data flows one way: a *task* (logits and labels, calibration and test part) goes through the *runner*
(task × method × seed) into the *store* (one tidy CSV); tables, figures and pages read the store only.
"""
