"""The programs."""

from alf_lite.bin import early_interrupt

early_interrupt.install_in_program()
