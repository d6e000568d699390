#!/bin/sh
# Run by acpid when the power button is pressed.
exec /sbin/poweroff
