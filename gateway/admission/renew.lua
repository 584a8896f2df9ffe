-- Extends the leases of running requests of one key; a hold that Redis has lost stands again.
--
-- KEYS  state and open of each scope
-- ARGV  lease in ms; then for each scope requests, tokens, concurrency (limits, -1 for none); then the members

local lease_ms = tonumber(ARGV[1])
local now = now_microseconds()
local scopes = #KEYS / 2

for i = 1, scopes do
  local first = 3 * i - 1
  local scope = load_scope(KEYS[2 * i - 1], KEYS[2 * i], ARGV[first], ARGV[first + 1], now)
  for argument = 3 * scopes + 2, #ARGV do
    open_hold(scope, ARGV[argument], lease_ms)
  end
  save_scope(scope, lease_ms)
end
return #ARGV - 3 * scopes - 1
