#!/bin/sh
# Comments, messages and man pages use the field's terms: private words do not return.
. "$abs_top_srcdir/t/meta/common.sh"

cd "$abs_top_srcdir" || exit 99

text="$(find include libtecore libtegraph libtecomm libtetoken kernels tools daemon examples t \
	-name '*.[ch]' -o -name '*.def' -o -name '*.cu' -o -name '*.cuh' | sort) \
	$(find man -name '*.[1-9]' -o -name '*.[1-9].in' | sort) README.md CONTRIBUTING.md"

# most N WHAT PATTERN: at most N lines match, as whole words, in upper or lower case
most()
{
	grep -nwiE "$3" $text >"$tmp/bad"
	[ "$(wc -l <"$tmp/bad")" -gt "$1" ] || : >"$tmp/bad"
	empty "$2" "$tmp/bad"
}

# not WHAT PATTERN: no line matches
not()
{
	most 0 "$@"
}

product=$(echo "$text" | tr ' ' '\n' | grep -E '^(include|lib|kernels|daemon|tools).*\.(h|c|cu|cuh)$')

# comments WHAT PATTERN: no comment of the product has the pattern
comments()
{
	grep -nE "(^[[:space:]]*\*|/\*).*($2)" $product >"$tmp/bad"
	empty "$1" "$tmp/bad"
}

# a few may describe positions, for example columns beside a tile
most 4 "order and time: after, serially, concurrently" 'behind|beside'
not "dependencies are computed from memory accesses" 'by[ _]data'
not "GEMM" '(small|large|captured)[ _]products?|products? (in|of) FP8'
not "PDL edges" 'early edges?'
not "chains, critical paths and successors" 'heirs?|longest way|(straight|long) line of (nodes|kernels)'
not "concurrently" 'run side by side|side by side'
not "batches" 'joined to the call|calls? of launches'
not "bindings" '(overlaps?|rebound?|bound) slots?|slots? of a (graph|recording)'
not "continues with, restores" 'goes on with|puts? back|put back'
not "user-defined, of the library" "one's own|of ours"
not "no op, no node, no caller" 'nobody'
not "previous" 'the time before|from the time before'
not "error messages, injected faults" '(the|its|a) sentence (that|of the)|fault was asked for'
not "valid until the process ends" 'lives? for ever'
# pages WHAT PATTERN [FILE...]: no page, no public header and no FILE has the pattern
pages()
{
	local what="$1" pattern="$2"
	shift 2
	grep -nwiE "$pattern" "$@" include/te/*.h $(find man -name '*.[1-9]' -o -name '*.[1-9].in') \
		README.md >"$tmp/bad"
	empty "$what" "$tmp/bad"
}

pages "immediately, or concurrently" 'at once' $(echo "$product" | grep -v ^kernels)
pages "bit-identical to" '(ha(s|ve)|with|computes?|gives?) the bits (of|that|they).*'
pages "ranks connect, find each other" 'ranks (can |cannot )?(meet|met)|have met|way to meet'
pages "per parameter" '(bytes|bits|once|launch(es)?) an? (parameter|element|step|pass|rank|row|token)'
pages "regardless of, also" 'whatever' $(echo "$product" | grep -v ^kernels)
comments "nouns instead of chained pronouns" '\<(those|that) of\>|\<one of both\>'
grep -nwiE '(those|that) of' $(find man -name '*.[1-9]') README.md doc/*.md >"$tmp/bad"
empty "nouns in pages, too" "$tmp/bad"
comments "except, forever, without success" '\<(but for|for ever|in vain)\>'
grep -nE '/\*+ (of|that|those|whose) ' $product >"$tmp/bad"
empty "a comment begins with the noun it is about" "$tmp/bad"

tap_end
