# commands.awk - the commands that a man page displays by .Dl, one a line; one that ends in a
# backslash continues in the next display.
/^\.Dl / {
	part = substr($0, 5)
	gsub(/^"|"$|\\&/, "", part)
	more = sub(/\\e$/, "", part)
	sub(/^\$ /, "", part)
	printf "%s%s", part, more ? "" : "\n"
}
