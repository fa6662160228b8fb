# Numbers of registers and labels in PTX, relative to the one before of the same type: kernels of a
# template become more alike, and xz packs the text to 60 % of the size. ptx_read() in
# libtecore/backend/cuda/images.c is the inverse. "%r" and a letter from A to _ is the %r whose number
# is that of the last %r, plus the letter's distance from P; "%r`" and one of '!' to '~' is the same for
# larger distances. Labels are $L__BB1_ and a number. All else is as it was.
BEGIN {
	for (i = -15; i <= 15; i++)
		letter[i] = sprintf("%c", 80 + i)
	for (i = 33; i <= 126; i++)
		if (!(i - 80 in letter))
			letter[i - 80] = sprintf("`%c", i)
}
/(%[a-z][a-z]?|\$L__BB[0-9]+_)[A-Z_`\[\\\]^]/ {
	print FILENAME ": line " FNR " cannot be packed" >"/dev/stderr"
	exit 1
}
{
	out = ""
	rest = $0
	while (match(rest, /(%[a-z][a-z]?|\$L__BB[0-9]+_)[0-9]+/)) {
		name = type = substr(rest, RSTART, RLENGTH)
		sub(/[0-9]+$/, "", type)
		n = substr(name, length(type) + 1) + 0
		kind = type ~ /%/ ? type : "$"
		by = n - last[kind]
		last[kind] = n
		out = out substr(rest, 1, RSTART - 1) (by in letter ? type letter[by] : name)
		rest = substr(rest, RSTART + RLENGTH)
	}
	print out rest
}
