#!/bin/bash
# What ipmi_sim calls to learn and change the machine it stands for: passes its arguments to the test program, which
# holds the machine, and prints the answer. The first argument is the program's port, the second what is asked about.
port=$1
shift
exec 3<>"/dev/tcp/127.0.0.1/$port" || exit 1
echo "$*" >&3
cat <&3
