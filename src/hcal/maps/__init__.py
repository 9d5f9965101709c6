"""Maps: frozen objects of arrays that turn scores into log-probabilities, by one formula each.

``base`` says what a map is, ``prediction`` what surrounds it in ``predict_proba``. ``paper`` holds the fitted maps of
h-calibration and ``trainable`` the torch modules that learn them; its ``PAPER_MAPS`` names the paper's twelve.
"""
