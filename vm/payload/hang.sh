# hang.sh - for the tests of the harness: never ends.
while :; do sleep 60; done
