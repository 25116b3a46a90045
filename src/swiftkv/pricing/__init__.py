"""What the stages' formulas are made of: a planned job, how much work it has, how big its model and how fast its machine is.

Nothing here imports torch.
"""
