"""Weight formats: how a checkpoint's tensor becomes a linear operator."""
