-- Turns one hold into use. The hold is the token: where there is none, nothing happens, so it may be sent twice.
--
-- KEYS  state and open of each scope
-- ARGV  member, used tokens, lease in ms; then for each scope requests, tokens, concurrency (limits, -1 for none)
-- Answer: in how many scopes the hold stood.

local member, used, lease_ms = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local now = now_microseconds()
local found = 0

for i = 1, #KEYS / 2 do
  local first = 3 * i + 1
  if redis.call('ZREM', KEYS[2 * i], member) == 1 then
    local scope = load_scope(KEYS[2 * i - 1], KEYS[2 * i], ARGV[first], ARGV[first + 1], now)
    scope.held = math.max(0, scope.held - tokens_of(member))
    if scope.tokens_limit >= 0 then
      scope.tokens = scope.tokens + used * UNITS
    end
    save_scope(scope, lease_ms)
    found = found + 1
  end
end
return found
