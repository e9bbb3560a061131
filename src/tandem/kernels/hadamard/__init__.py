"""Block-diagonal Sylvester-Hadamard rotation of the last dimension."""
