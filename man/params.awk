# params.awk - the rows of te_environment(7) from params.def

function row(s,    part, n, i, text, type, name) {
	n = split(s, part, "\"")
	name = part[1]
	sub(/^TE_PARAM\(/, "", name)
	type = name
	sub(/,.*/, "", name)
	sub(/^[^,]*, */, "", type)
	sub(/,.*/, "", type)
	for (i = 6; i <= n; i += 2) # adjacent string literals
		text = text part[i]
	print ".It Ev TE_" name
	print text "."
	if (type == "ENUM")
		gsub(/\|/, ", ", part[4])
	printf "%s%s, default", type, part[4] == "" ? "" : (type == "ENUM" ? " of " : " in ") part[4]
	if (part[2] == "")
		print " empty."
	else
		printf "\n.Dq %s .\n", part[2]
}

/^TE_PARAM\(/ { collecting = 1; s = "" }
collecting {
	sub(/^[ \t]+/, "")
	s = s $0
	if (/\)$/) {
		row(s)
		collecting = 0
	}
}
