"""Logits in, tokens out: penalties, filters, the draw, the accept/reject rule, logprobs.

Everything works on one row at a time, in numpy, so a row's token never depends on its neighbours. Nothing
here keeps a random state: a draw is a function of (seed, output index) alone.
"""
