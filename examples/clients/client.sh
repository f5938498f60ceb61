#!/usr/bin/env bash
# A client of `routewright serve` with curl: an answer, a stream, an error.
#
#     ROUTEWRIGHT_URL=http://127.0.0.1:8080 ROUTEWRIGHT_KEY=sk_test_... bash client.sh
set -euo pipefail

url=${ROUTEWRIGHT_URL:-http://127.0.0.1:8080}
headers=(-H "Authorization: Bearer $ROUTEWRIGHT_KEY" -H "Content-Type: application/json")

# An answer. With an idempotency key it is made, and paid, once, however often curl tries.
curl --silent --show-error --fail-with-body --retry 3 "${headers[@]}" -H "Idempotency-Key: sky-$$-$RANDOM" \
    "$url/v1/route" --data '{"messages": [{"role": "user", "content": "Why is the sky blue?"}], "goal": "quality"}'
echo

# A stream, as it comes.
curl --silent --show-error --fail-with-body --no-buffer "${headers[@]}" \
    "$url/v1/route" --data '{"messages": [{"role": "user", "content": "Why is the sky blue?"}], "stream": true}'

# An error says what to do about it.
curl --silent "${headers[@]}" "$url/v1/route" --data '{"messages": [], "goal": "speed"}'
echo
