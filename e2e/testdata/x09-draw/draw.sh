trap "RANDOM=\$SRANDOM" USR1
while :; do
	printf 'RANDOM %s\nSRANDOM %s\n' "$RANDOM$RANDOM" "$SRANDOM$SRANDOM" >>log-bash
	sleep 0.2
done
