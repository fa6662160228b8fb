# hello.sh - for the tests of the harness: exits with te.status=.
exit "$status"
