#!/bin/sh
# A folder for checkpoints that other users can write to: links that they plant are not followed.
. "$abs_top_srcdir/t/lib/tap.sh"
. "$abs_top_srcdir/t/tools/te_train.sh"

train="$micro --steps 1 --batch 1 --seq-len 8"
echo "not to be changed" >theirs
cp theirs kept
mkdir shared
chmod 777 shared

# planted WHAT SUBJECT: with what is now in the folder, a run is refused, and the file that a link
# names is as it was
planted()
{
	fails "$1 is refused" "shared/$2" timeout 60 "$te_train" $train --out shared text
	check "and the file that it names is unchanged" cmp kept theirs
	rm -rf "shared/${2%%:*}"
}

ln -s ../theirs shared/.lock
planted "a link as the lock" ".lock: is a link"
ln theirs shared/.lock
planted "a second name of a file as the lock" ".lock: is a link"
mkfifo shared/.lock
planted "a FIFO as the lock" ".lock: is a link"
for f in config.json model.safetensors state.safetensors; do
	ln -s ../theirs shared/$f.new
	planted "a link as $f.new" "$f.new: is not a regular file"
	ln theirs shared/$f.new
	check "a second name of a file as $f.new" "$te_train" $train --out shared text
	check "is replaced, not written to" cmp kept theirs
	rm -f shared/*
	ln -s nothing shared/$f
	check "a link to nothing as $f" "$te_train" $train --out shared --overwrite text
	check "is replaced" test ! -e shared/nothing -a -f shared/$f -a ! -L shared/$f
	rm -f shared/*
done
ln -s nothing shared/model.safetensors
planted "such a folder without --overwrite" "model.safetensors: exists"
echo "left by a crash" >shared/config.json.new
check "a regular file as config.json.new is replaced" "$te_train" $train --out shared text

mkdir other
cp theirs other/model.safetensors
cp theirs other/config.json
ln -s ../other shared/best
check "a link as the folder of the best weights" "$te_train" $train --save-best --out shared \
	--overwrite text
check "is not followed" cmp kept other/model.safetensors
check "to remove anything either" cmp kept other/config.json
rm shared/best

# the links of another user
cp -r shared private
strangers="is a link that another user has made"
read="$te_train --resume shared --sample-only --sample 1"
for f in config.json model.safetensors state.safetensors; do
	if [ "$(id -u)" != 0 ]; then
		skip "a stranger's link as $f" "only root gives a link to another user"
		continue
	fi
	rm shared/$f
	ln -s ../private/$f shared/$f
	check "a link of one's own as $f" $read
	chown -h 65534 shared/$f
	fails "a stranger's link as $f is refused" "shared/$f: $strangers" \
		$read
	rm shared/$f
	cp private/$f shared/$f
	ln -s ../private/$f shared/$f.new
	chown -h 65534 shared/$f.new
	check "nor is one as $f.new taken for the end of a save" $read
	check "$f is no link" test ! -L shared/$f
	rm -f shared/$f.new
done
if [ "$(id -u)" = 0 ]; then
	mv shared/model.safetensors blob
	ln -s ../blob shared/model.safetensors
	chown -h 65534 shared/model.safetensors
	fails "nor does --init follow it" "$strangers" "$te_train" --init shared --steps 1 text
	chown 65534 shared
	check "but that of a folder's owner" "$te_train" --init shared --steps 1 text
	ln -s private planted
	chown -h 65534 planted
	fails "a stranger's link as --out is refused" "planted: $strangers" \
		"$te_train" $train --out planted/ --overwrite text
fi

# a run that is refused before its first step leaves none of the folders that it made
"$te_train" $train --out whole text >out 2>err
mkdir damaged
cp whole/config.json damaged
head -c 2000 whole/model.safetensors >damaged/model.safetensors
refused="$te_train --init damaged --steps 1 --batch 1 --seq-len 8"
fails "damaged weights" "damaged/model.safetensors" $refused --out new text
check "leave no folder" test ! -e new
fails "nor do they with a path" "damaged/model.safetensors" $refused --out "$tmp/there/a//b/" text
check "any of its folders" test ! -e there
mkdir -p there/a
fails "or with folders that exist" "damaged/model.safetensors" $refused --out there/a/b text
check "which stay" test "$(ls -A there there/a | tr '\n' ' ')" = "there: a  there/a: "
mkdir empty
fails "a folder that exists" "damaged/model.safetensors" $refused --out empty text
check "stays, too" test -d empty
check "one where a run ended stays" test -e whole/state.safetensors -a -e whole/.lock

tap_end
