-- +goose Up
-- Money (design 6). A posting moves an amount between two accounts of one user, so it sums to zero by its form;
-- a wallet row holds the balances of one user and currency, and the database checks that they sum to zero too.
-- All amounts are minor units.

CREATE TABLE cell.wallets (
  slot      int    NOT NULL,
  epoch     bigint NOT NULL,
  rev       bigint NOT NULL,
  user_id   bigint NOT NULL,
  currency  text   NOT NULL CHECK (currency ~ '^[A-Z]{3}$'),
  available bigint NOT NULL DEFAULT 0 CONSTRAINT wallets_available CHECK (available >= 0),
  frozen    bigint NOT NULL DEFAULT 0 CONSTRAINT wallets_frozen    CHECK (frozen >= 0),
  clearing  bigint NOT NULL DEFAULT 0,   -- owed to (+) or by (-) other slots: nets to zero over all cells at rest
  external  bigint NOT NULL DEFAULT 0,   -- minus what came from outside
  suspense  bigint NOT NULL DEFAULT 0 CONSTRAINT wallets_suspense  CHECK (suspense >= 0),
  seq       bigint NOT NULL DEFAULT 0,   -- postings so far
  PRIMARY KEY (slot, user_id, currency),
  CONSTRAINT wallets_zero CHECK (available + frozen + clearing + external + suspense = 0)
);
SELECT cell.unit_table('cell.wallets');

CREATE TABLE cell.postings (
  slot       int    NOT NULL,
  epoch      bigint NOT NULL,
  rev        bigint NOT NULL,
  user_id    bigint NOT NULL,
  currency   text   NOT NULL,
  seq        bigint NOT NULL,            -- 1, 2, 3 ... per wallet
  debit      text   NOT NULL CHECK (debit  IN ('available', 'frozen', 'clearing', 'external', 'suspense')),
  credit     text   NOT NULL CHECK (credit IN ('available', 'frozen', 'clearing', 'external', 'suspense')),
  amount     bigint NOT NULL CHECK (amount > 0),
  ref        text   NOT NULL,            -- transfer:<id>, order:<id>, deposit:<id>
  step       text   NOT NULL,            -- freeze, settle, reverse, credit, deposit
  available  bigint NOT NULL,            -- the balances after it
  frozen     bigint NOT NULL,
  memo       text   NOT NULL DEFAULT '',
  created_at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (slot, user_id, currency, seq),
  UNIQUE (slot, ref, step),
  CHECK (debit <> credit)
);
SELECT cell.unit_table('cell.postings');

-- The source's side of a transfer. An order's payment to a seller is one too, of kind order.
CREATE TABLE cell.transfers (
  slot       int    NOT NULL,
  epoch      bigint NOT NULL,
  rev        bigint NOT NULL,
  id         bigint NOT NULL,
  kind       text   NOT NULL CHECK (kind IN ('transfer', 'order')),
  from_user  bigint NOT NULL,
  to_user    bigint NOT NULL,
  to_slot    int    NOT NULL,
  amount     bigint NOT NULL CHECK (amount > 0),
  currency   text   NOT NULL,
  state      text   NOT NULL CHECK (state IN ('FROZEN', 'CANCELLING', 'SETTLED', 'REVERSED', 'REJECTED')),
  reason     text   NOT NULL DEFAULT '',
  memo       text   NOT NULL DEFAULT '',
  order_id   bigint NOT NULL DEFAULT 0,
  deadline   timestamptz NOT NULL,
  created_at timestamptz NOT NULL DEFAULT now(),
  ended_at   timestamptz,
  PRIMARY KEY (slot, id),
  CHECK ((state IN ('SETTLED', 'REVERSED', 'REJECTED')) = (ended_at IS NOT NULL))
);
CREATE INDEX transfers_by_user ON cell.transfers (slot, from_user, created_at DESC, id);
CREATE INDEX transfers_open ON cell.transfers (deadline) WHERE ended_at IS NULL;
CREATE INDEX transfers_by_order ON cell.transfers (slot, order_id) WHERE order_id <> 0;
SELECT cell.unit_table('cell.transfers');

-- The destination's side: the first insert wins, for ever.
CREATE TABLE cell.credits (
  slot        int    NOT NULL,
  epoch       bigint NOT NULL,
  rev         bigint NOT NULL,
  transfer_id bigint NOT NULL,
  kind        text   NOT NULL,
  user_id     bigint NOT NULL,
  from_user   bigint NOT NULL,
  from_slot   int    NOT NULL,
  amount      bigint NOT NULL,
  currency    text   NOT NULL,
  state       text   NOT NULL CHECK (state IN ('CREDITED', 'REFUSED', 'CANCELLED')),
  reason      text   NOT NULL DEFAULT '',
  memo        text   NOT NULL DEFAULT '',
  created_at  timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (slot, transfer_id)
);
CREATE INDEX credits_by_user ON cell.credits (slot, user_id, created_at DESC, transfer_id);
SELECT cell.unit_table('cell.credits');
