"""The paper, reproduced: tasks, runner, results, tables, figures, ablations, and the theory checked.

Data flows one way: a *task* (logits and labels, calibration and test part) goes through the *runner*
(task × method × seed) into the *store* (one tidy CSV); tables, figures and pages read the store only.
"""
