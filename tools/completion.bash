# completion.bash - bash completion of te's tools, installed under the name of each of them.
#
# Options, their choices and the tests of te_perftest are taken from the tool's own --help when it
# is completed, so that they fit the installed version.

_te_tool()
{
	local cur=$2 prev=$3 help words
	COMPREPLY=()
	help=$("$1" --help 2>/dev/null) || return

	# the choices of the option before: "--backend auto|host|cuda", "--graph [off|step|layer]"
	words=$(sed -n "s/^ *\(-[a-z], \)\{0,1\}$prev \[\{0,1\}\([a-z0-9|-]*|[a-z0-9|-]*\).*/\2/p" \
		<<<"$help" | tr '|' '\n' | sort -u)
	if [ "$prev" = --preset ]; then
		words=$(sed -n '/^Presets/,/^$/s/^  \([a-z0-9-]*\) .*/\1/p' <<<"$help")
	fi
	if [[ $prev == --* && -n $words ]]; then
		mapfile -t COMPREPLY < <(compgen -W "$words" -- "$cur")
		return
	fi
	if [[ $cur == -* ]]; then
		words=$(grep -oE -- '^ +(-[a-z], +)?--[a-z0-9-]+' <<<"$help" | grep -oE -- '--[a-z0-9-]+')
		mapfile -t COMPREPLY < <(compgen -W "$words" -- "$cur")
		return
	fi
	if [ "$COMP_CWORD" = 1 ] && [ "${1##*/}" = te_perftest ]; then
		words=$("$1" --list 2>/dev/null | cut -d ' ' -f 1)
		mapfile -t COMPREPLY < <(compgen -W "$words" -- "$cur")
	fi
	# anything else is a file: the default of complete -o default
}

complete -o default -F _te_tool te_export te_generate te_info te_perftest te_plot te_run te_token te_train tectl
