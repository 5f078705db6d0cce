-- The three local transactions of a transfer, for pgbench: the entries of both sides and nothing else. No message, no inbox.
-- Payers are in slots 0 to 999, payees in 1000 to 1999; base keeps the IDs of two runs apart.
-- var i 0
\set i :i + 1
\set from random(0, 999)
\set to random(1000, 1999)
\set n (:base + :client_id * 10000000 + :i) * 16384 + :from
\set payer 8589934592 * 16384 + :from
\set payee 8589934592 * 16384 + :to
BEGIN;
SELECT cell.enter(:from, 1, 0);
WITH w AS (
    UPDATE cell.wallets SET available = available - 1, frozen = frozen + 1, seq = seq + 1,
      spent = CASE WHEN spent_on >= (now() AT TIME ZONE 'UTC')::date THEN spent ELSE 0 END + 1, spent_on = greatest(spent_on, (now() AT TIME ZONE 'UTC')::date)
    WHERE slot = :from AND user_id = :payer AND currency = 'CNY'
      AND CASE WHEN spent_on >= (now() AT TIME ZONE 'UTC')::date THEN spent ELSE 0 END + 1 <= 100000000000
    RETURNING seq, available, frozen)
  INSERT INTO cell.postings (slot, user_id, currency, seq, debit, credit, amount, ref, step, available, frozen)
  SELECT :from, :payer, 'CNY', w.seq, 'available', 'frozen', 1, 'transfer:' || :n, 'freeze', w.available, w.frozen FROM w;
INSERT INTO cell.transfers (slot, id, kind, from_user, to_user, to_slot, amount, currency, state, deadline)
  VALUES (:from, :n, 'transfer', :payer, :payee, :to, 1, 'CNY', 'FROZEN', now() + interval '1 h');
SELECT cell.leave();
COMMIT;
BEGIN;
SELECT cell.enter(:to, 1, 0);
INSERT INTO cell.credits (slot, transfer_id, kind, user_id, from_user, from_slot, amount, currency, state, begun_at)
  VALUES (:to, :n, 'transfer', :payee, :payer, :from, 1, 'CNY', 'CREDITED', now());
WITH w AS (
    UPDATE cell.wallets SET available = available + 1, clearing = clearing - 1, seq = seq + 1
    WHERE slot = :to AND user_id = :payee AND currency = 'CNY' RETURNING seq, available, frozen)
  INSERT INTO cell.postings (slot, user_id, currency, seq, debit, credit, amount, ref, step, available, frozen)
  SELECT :to, :payee, 'CNY', w.seq, 'clearing', 'available', 1, 'transfer:' || :n, 'credit', w.available, w.frozen FROM w;
SELECT cell.leave();
COMMIT;
BEGIN;
SELECT cell.enter(:from, 1, 0);
WITH w AS (
    UPDATE cell.wallets SET frozen = frozen - 1, clearing = clearing + 1, seq = seq + 1
    WHERE slot = :from AND user_id = :payer AND currency = 'CNY' RETURNING seq, available, frozen)
  INSERT INTO cell.postings (slot, user_id, currency, seq, debit, credit, amount, ref, step, available, frozen)
  SELECT :from, :payer, 'CNY', w.seq, 'frozen', 'clearing', 1, 'transfer:' || :n, 'settle', w.available, w.frozen FROM w;
UPDATE cell.transfers SET state = 'SETTLED', ended_at = now() WHERE slot = :from AND id = :n AND state = 'FROZEN';
SELECT cell.leave();
COMMIT;
