"""Executes batches according to a plan: stages, their workers and buffers, transfers between cards.

The life of a batch::

    submit ─ step.py: batch -> passes (one for all ROWS runs, one for each PREFILL run)
       │
       ▼ FIFO                     ▼ FIFO
    stage 0: embed, its layers ─ host buffer ─> stage 1: its layers, logits ─ head.py: sample ─> future

A stage works on one pass while the stage before it works on the next: chunk i+1 of the same prompt, or
another batch. Nothing here decides who runs or who owns a page.
"""
