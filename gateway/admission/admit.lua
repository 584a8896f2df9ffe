-- Admits one request in every scope, or in none.
--
-- KEYS  state and open of each scope, the key's before the tenant's
-- ARGV  member, tokens, lease in ms; then for each scope requests, tokens, concurrency (limits, -1 for none)
-- Answer: 1 or 0, then for each scope requests, tokens (levels), held, running: as they are now.
-- Sent twice, after a lost reply, it charges once.

local member, tokens, lease_ms = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local now = now_microseconds()
local scopes = {}
local admitted = 1

for i = 1, #KEYS / 2 do
  local first = 3 * i + 1
  local scope = load_scope(KEYS[2 * i - 1], KEYS[2 * i], ARGV[first], ARGV[first + 1], now)
  local concurrency = tonumber(ARGV[first + 2])
  drop_expired(scope)
  if (scope.requests_limit >= 0 and scope.requests + UNITS > scope.requests_limit * UNITS)
    or (scope.tokens_limit >= 0 and scope.tokens + (scope.held + tokens) * UNITS > scope.tokens_limit * UNITS)
    or (concurrency >= 0 and scope.running >= concurrency) then
    admitted = 0
  end
  scopes[i] = scope
end

if redis.call('ZSCORE', KEYS[2], member) then
  admitted = 1
elseif admitted == 1 then
  for _, scope in ipairs(scopes) do
    if scope.requests_limit >= 0 then
      scope.requests = scope.requests + UNITS
    end
    open_hold(scope, member, lease_ms)
    scope.running = scope.running + 1
    save_scope(scope, lease_ms)
  end
end

local answer = {admitted}
for _, scope in ipairs(scopes) do
  answer[#answer + 1] = scope.requests
  answer[#answer + 1] = scope.tokens
  answer[#answer + 1] = scope.held
  answer[#answer + 1] = scope.running
end
return answer
