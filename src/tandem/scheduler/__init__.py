"""Who runs, who waits, and who owns which page. Integers only; reaches the engine through a protocol."""
