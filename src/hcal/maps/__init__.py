"""Maps: frozen objects of arrays that turn scores into log-probabilities, by one formula each.

``base`` says what a map is, and what surrounds it in ``predict_proba``. Methods define their maps beside their fits.
"""
