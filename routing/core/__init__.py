"""The pure decision core: numbers in, a verdict out. No I/O, no clock, no Django."""
