"""P-CapsNets in 8-bit integers: after training, or with a little more of it."""

from purecaps.quant.calibrate import calibration_images
from purecaps.quant.convert import quantise
from purecaps.quant.network import QuantisedPCapsNet
from purecaps.quant.training import quantisation_aware

__all__ = ["QuantisedPCapsNet", "calibration_images", "quantisation_aware", "quantise"]
