"""Kimi delta attention: a recurrent state per head, decayed per channel and corrected by a delta rule."""
