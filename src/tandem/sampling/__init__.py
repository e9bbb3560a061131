"""Logits in, tokens out: penalties, filters, the draw, the accept/reject rule, logprobs.

``sequence.py`` says what is asked of a sequence's next row; ``host.py`` draws it in numpy, a kernel where
logits lie on a card (``kernels/sampling``); ``verify.py`` takes the token in. A row's token never depends on
its neighbours, and nothing here keeps a random state: a draw is a function of (seed, output index) alone.
"""
