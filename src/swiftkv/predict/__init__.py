"""How long serving takes by a model of time: FLOPs, bytes and all-reduces of every engine step on a kind of device.

With the device's peaks the same model gives the roofline limit.
"""
