-- +goose Up
-- Money, further (design 6): currencies, what is owed, what was spent on a day, refunds.

-- The digits behind the point of a currency's amounts; NULL for one that isn't taken here. Amounts are always whole
-- numbers of the smallest unit: 0 digits for the yen, 3 for the dinar.
-- +goose StatementBegin
CREATE FUNCTION cell.minor_digits(currency text) RETURNS int LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE currency WHEN 'CNY' THEN 2 WHEN 'USD' THEN 2 WHEN 'EUR' THEN 2 WHEN 'JPY' THEN 0 WHEN 'KWD' THEN 3 END;
-- +goose StatementEnd

-- recovery: what was paid for a user who hadn't it, and is owed by them: never above zero. spent: what the user sent to
-- others on the day spent_on (UTC, this database's clock); the limit of a day is checked by the statement that freezes
-- the money, so it costs none of its own.
ALTER TABLE cell.wallets
  ADD COLUMN recovery bigint NOT NULL DEFAULT 0 CONSTRAINT wallets_recovery CHECK (recovery <= 0),
  ADD COLUMN spent    bigint NOT NULL DEFAULT 0 CONSTRAINT wallets_spent CHECK (spent >= 0),
  ADD COLUMN spent_on date   NOT NULL DEFAULT '1970-01-01',
  ADD CONSTRAINT wallets_known_currency CHECK (cell.minor_digits(currency) IS NOT NULL),
  DROP CONSTRAINT wallets_zero,
  ADD CONSTRAINT wallets_zero CHECK (available + frozen + clearing + external + suspense + recovery = 0);

-- An entry is one row with both its legs: one user, one currency, the sum zero, two different accounts. The key
-- (slot, ref, step) has a step of a transfer once, whatever the accounts.
ALTER TABLE cell.postings
  DROP CONSTRAINT postings_debit_check,
  DROP CONSTRAINT postings_credit_check,
  ADD CONSTRAINT postings_accounts CHECK (debit  IN ('available', 'frozen', 'clearing', 'external', 'suspense', 'recovery')
                                      AND credit IN ('available', 'frozen', 'clearing', 'external', 'suspense', 'recovery')),
  ADD CONSTRAINT postings_known_currency CHECK (cell.minor_digits(currency) IS NOT NULL),
  ADD CONSTRAINT postings_balances CHECK (available >= 0 AND frozen >= 0 AND seq >= 1),
  ADD CONSTRAINT postings_named CHECK (ref <> '' AND step <> '');

-- A refund is a transfer of its own that points at the one whose money it gives back. It is begun where that money came
-- in: the row there counts what was given back, and can't count more than came.
ALTER TABLE cell.transfers
  ADD COLUMN refund_of bigint NOT NULL DEFAULT 0,
  ADD COLUMN refunded  bigint NOT NULL DEFAULT 0 CONSTRAINT transfers_refunded CHECK (refunded BETWEEN 0 AND amount),
  DROP CONSTRAINT transfers_kind_check,
  ADD CONSTRAINT transfers_kind CHECK (kind IN ('transfer', 'order', 'refund')),
  ADD CONSTRAINT transfers_points CHECK ((kind = 'refund') = (refund_of <> 0)),
  ADD CONSTRAINT transfers_self CHECK (kind = 'order' OR from_user <> to_user),
  ADD CONSTRAINT transfers_known_currency CHECK (cell.minor_digits(currency) IS NOT NULL);
CREATE INDEX transfers_by_refund ON cell.transfers (slot, refund_of) WHERE refund_of <> 0;

ALTER TABLE cell.credits
  ADD COLUMN refund_of bigint NOT NULL DEFAULT 0,
  ADD COLUMN refunded  bigint NOT NULL DEFAULT 0 CONSTRAINT credits_refunded CHECK (refunded BETWEEN 0 AND amount),
  ADD CONSTRAINT credits_amount CHECK (amount > 0),
  ADD CONSTRAINT credits_kind CHECK (kind IN ('transfer', 'order', 'refund')),
  ADD CONSTRAINT credits_points CHECK ((kind = 'refund') = (refund_of <> 0)),
  ADD CONSTRAINT credits_known_currency CHECK (cell.minor_digits(currency) IS NOT NULL);
