-- Shared beginning of admit.lua, settle.lua and renew.lua: the state of one scope, which is a key or a tenant.
--
-- Two Redis keys per scope, both passed in KEYS and both under the tenant's hash tag:
--   state  hash: requests, tokens (levels in units, see limits.py), held (sum of the open holds), at (microseconds)
--   open   sorted set of holds: member "<request id>:<tokens>", score = end of its lease in milliseconds
-- Time is Redis's own. Both keys expire when nothing in them matters any more.

local UNITS = 60000000
local MARGIN_MS = 1000

local function now_microseconds()
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end

-- A limit arrives as a number; -1 stands for none.
local function drained(level, limit, elapsed)
  if limit < 0 then
    return 0
  end
  return math.max(0, tonumber(level or 0) - limit * elapsed)
end

local function load_scope(state_key, open_key, requests_limit, tokens_limit, now)
  local stored = redis.call('HMGET', state_key, 'requests', 'tokens', 'held', 'at')
  local elapsed = math.max(0, now - tonumber(stored[4] or now))
  return {
    state_key = state_key,
    open_key = open_key,
    requests_limit = tonumber(requests_limit),
    tokens_limit = tonumber(tokens_limit),
    requests = drained(stored[1], tonumber(requests_limit), elapsed),
    tokens = drained(stored[2], tonumber(tokens_limit), elapsed),
    held = tonumber(stored[3] or 0),
    now = now,
  }
end

local function tokens_of(member)
  return tonumber(string.match(member, ':(%d+)$'))
end

-- Forgets the holds of processes that died, and counts those that run.
local function drop_expired(scope)
  local now_ms = string.format('%.0f', math.floor(scope.now / 1000))
  local expired = redis.call('ZRANGEBYSCORE', scope.open_key, '-inf', now_ms)
  if #expired > 0 then
    redis.call('ZREMRANGEBYSCORE', scope.open_key, '-inf', now_ms)
    for _, member in ipairs(expired) do
      scope.held = math.max(0, scope.held - tokens_of(member))
    end
  end
  scope.running = redis.call('ZCARD', scope.open_key)
  if scope.running == 0 then
    scope.held = 0
  end
end

local function open_hold(scope, member, lease_ms)
  local lease_end = string.format('%.0f', math.floor(scope.now / 1000) + lease_ms)
  if redis.call('ZADD', scope.open_key, lease_end, member) == 1 then
    scope.held = scope.held + tokens_of(member)
  end
end

local function save_scope(scope, lease_ms)
  local drain_us = 0
  if scope.requests_limit > 0 then
    drain_us = scope.requests / scope.requests_limit
  end
  if scope.tokens_limit > 0 then
    drain_us = math.max(drain_us, scope.tokens / scope.tokens_limit)
  end
  -- %.0f, because Redis writes a Lua number with 14 digits only.
  redis.call('HSET', scope.state_key,
    'requests', string.format('%.0f', scope.requests),
    'tokens', string.format('%.0f', scope.tokens),
    'held', string.format('%.0f', scope.held),
    'at', string.format('%.0f', scope.now))
  redis.call('PEXPIRE', scope.state_key, string.format('%.0f', math.ceil(drain_us / 1000) + lease_ms + MARGIN_MS))
  redis.call('PEXPIRE', scope.open_key, string.format('%.0f', lease_ms + MARGIN_MS))
end
