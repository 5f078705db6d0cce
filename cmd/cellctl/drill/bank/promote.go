package bank

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"example.com/cellmart/platform/cellkit/outputcommit"
	"example.com/cellmart/platform/routing"
	"example.com/cellmart/services/control/controlapi"
)

// Promoter makes standbys the owners of slots. It has no leases and no voters: it
// fences the owner in the owner's own database, as only a test can. All slots of one
// call have the same owner and standby.
type Promoter struct {
	Control   *controlapi.Client // nil: nobody else knows of marks, and nothing can be published
	Databases map[string]string  // administrator's connections
}

// Place is who has slots, as their owner's database says.
type Place struct {
	Owner, Standby string
	Slots          []routing.Slot
	Epochs         []routing.Epoch
}

func (p Place) String() string {
	return fmt.Sprintf("%d slots of %s, standby %s", len(p.Slots), p.Owner, p.Standby)
}

// ErrUncovered says that a promotion could lose what others have acted on. Nothing
// was changed then.
var ErrUncovered = errors.New("not covered")

// errNothing says that nothing was changed.
var errNothing = errors.New("not promoted")

// toSwitch bounds how long control and the standby are asked.
const toSwitch = 30 * time.Second

// fenceLimit is how long a writer inside a slot is waited for.
const fenceLimit = "SET LOCAL lock_timeout = '5s'"

func (p Promoter) on(ctx context.Context, cell string, do func(pgx.Tx) error) error {
	db, err := pgx.Connect(ctx, p.Databases[cell])
	if err != nil {
		return fmt.Errorf("%s: %w", cell, err)
	}
	defer db.Close(context.WithoutCancel(ctx)) //nolint:errcheck // nothing is open in it
	if err := pgx.BeginFunc(ctx, db, do); err != nil {
		return fmt.Errorf("%s: %w", cell, err)
	}
	return nil
}

// Fence keeps every writer out of the slots: whoever is inside is waited for.
func (p Promoter) Fence(ctx context.Context, at Place) error {
	return p.on(ctx, at.Owner, func(tx pgx.Tx) error {
		if err := lock(ctx, tx, at); err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, `UPDATE cell.slots s SET state = 'draining', changed_at = now() FROM unnest($1::int[], $2::bigint[]) AS u(slot, epoch)
			WHERE s.slot = u.slot AND s.epoch = u.epoch AND s.role = 'owner' AND s.state = 'active'`, at.Slots, at.Epochs)
		if err == nil && int(tag.RowsAffected()) != len(at.Slots) {
			err = fmt.Errorf("%d of %d slots are its own as they were", tag.RowsAffected(), len(at.Slots))
		}
		return err
	})
}

// lock takes the slots' exclusive locks, ascending, as whoever changes an owner must.
func lock(ctx context.Context, tx pgx.Tx, at Place) error {
	if _, err := tx.Exec(ctx, fenceLimit); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock(4401, s) FROM (SELECT unnest($1::int[]) AS s ORDER BY 1) x`, at.Slots)
	return err
}

// Reopen takes a fence away.
func (p Promoter) Reopen(ctx context.Context, at Place) error {
	return p.on(ctx, at.Owner, func(tx pgx.Tx) error {
		if err := lock(ctx, tx, at); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `UPDATE cell.slots s SET state = 'active', changed_at = now() FROM unnest($1::int[], $2::bigint[]) AS u(slot, epoch)
			WHERE s.slot = u.slot AND s.epoch = u.epoch AND s.role = 'owner' AND s.state = 'draining'`, at.Slots, at.Epochs)
		return err
	})
}

// InSync says whether the standby's copies can be relied on, as far as it knows
// itself: ErrUncovered with the first that can't.
func (p Promoter) InSync(ctx context.Context, at Place) error {
	return p.on(ctx, at.Standby, func(tx pgx.Tx) error {
		var bad *string
		err := tx.QueryRow(ctx, `SELECT min(format('slot %s: %s', u.slot, coalesce(b.reason || ' ' || b.state, 'not kept')))
			FROM unnest($1::int[], $2::bigint[]) AS u(slot, epoch) LEFT JOIN cell.standing_by b ON b.slot = u.slot
			WHERE (b.role = 'standby' AND b.source = $3 AND b.epoch = u.epoch AND b.state = 'in_sync') IS NOT TRUE`,
			at.Slots, at.Epochs, at.Owner).Scan(&bad)
		if err == nil && bad != nil {
			err = fmt.Errorf("%w: %s", ErrUncovered, *bad)
		}
		return err
	})
}

// Switch publishes the standby as the owner and the owner as the standby, and
// promotes without waiting for the table. The slots must be fenced. errNothing says
// that nothing was changed; after any other error it isn't known.
func (p Promoter) Switch(ctx context.Context, at Place, reason string) error {
	if err := p.publish(ctx, at, reason); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, toSwitch)
	defer cancel()
	for {
		err := p.on(ctx, at.Standby, func(tx pgx.Tx) error {
			// Where the table was faster there is nothing left to do.
			_, err := tx.Exec(ctx, `SELECT cell.promote(s.slot, u.epoch + 1) FROM unnest($1::int[], $2::bigint[]) AS u(slot, epoch)
				JOIN cell.slots s ON s.slot = u.slot WHERE s.role = 'standby' AND s.epoch = u.epoch ORDER BY s.slot`, at.Slots, at.Epochs)
			return err
		})
		if err == nil || pause(ctx, askAgain) != nil {
			return err
		}
	}
}

// publish asks control until the table is there.
func (p Promoter) publish(ctx context.Context, at Place, reason string) error {
	changes := &controlapi.Changes{}
	for _, s := range at.Slots {
		changes.Assign = append(changes.Assign, controlapi.Assign{From: s, To: s, Owner: at.Standby})
		changes.Standbys = append(changes.Standbys, controlapi.Standby{From: s, To: s, Standby: at.Owner})
	}
	ctx, cancel := context.WithTimeout(ctx, toSwitch)
	defer cancel()
	for {
		table, _, err := p.Control.Route(ctx, 0, 0)
		if err == nil && table != nil {
			if a, _ := table.Slot(at.Slots[0]); a.Owner == at.Standby && a.Epoch > at.Epochs[0] {
				return nil // the answer was lost, the table wasn't
			}
			_, err = p.Control.Publish(ctx, controlapi.PublishRequest{ExpectVersion: table.Version(), Reason: reason, Changes: changes})
		}
		switch {
		case err == nil && table != nil:
			return nil
		case errors.Is(err, controlapi.ErrRefused):
			return fmt.Errorf("%w: %w", errNothing, err)
		}
		if pause(ctx, askAgain) != nil {
			return fmt.Errorf("publishing isn't known to have happened: %w", err)
		}
	}
}

// Promote fences, refuses what isn't covered, and switches: with what the standby has
// at that moment. What the owner had beyond it is lost to the slot. An error that
// isn't errNothing leaves it unknown.
func (p Promoter) Promote(ctx context.Context, at Place, reason string) error {
	return p.change(ctx, at, reason, p.Unmarked)
}

// HandOver moves slots to their standby without a loss: fenced, it waits until the
// standby has everything.
func (p Promoter) HandOver(ctx context.Context, at Place, reason string) error {
	return p.change(ctx, at, reason, p.drained)
}

func (p Promoter) change(ctx context.Context, at Place, reason string, may func(context.Context, Place) error) error {
	err := p.Fence(ctx, at)
	if err == nil {
		err = p.InSync(ctx, at)
	}
	if err == nil {
		err = may(ctx, at)
	}
	if err != nil {
		err = fmt.Errorf("%w: %w", errNothing, err)
	} else {
		err = p.Switch(ctx, at, reason)
	}
	if errors.Is(err, errNothing) { // a fence whose commit wasn't answered may stand, too
		if open := p.Reopen(ctx, at); open != nil {
			return fmt.Errorf("the fence of %s isn't known to be gone: %w", at, errors.Join(err, open))
		}
	}
	return err
}

// drained waits until the standby is where the owner was once nobody was inside.
func (p Promoter) drained(ctx context.Context, at Place) error {
	var end string
	err := p.on(ctx, at.Owner, func(tx pgx.Tx) error {
		return tx.QueryRow(ctx, "SELECT pg_current_wal_insert_lsn()::text").Scan(&end)
	})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	for {
		// A commit that changes nothing, behind the end: the standby hears of it.
		err := p.on(ctx, at.Owner, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "SELECT pg_logical_emit_message(true, 'cellmart.beat', '')")
			return err
		})
		if err != nil {
			return err
		}
		var past bool
		err = p.on(ctx, at.Standby, func(tx pgx.Tx) error {
			return tx.QueryRow(ctx, "SELECT coalesce(bool_or(lsn >= $2::pg_lsn), false) FROM cell.watermarks WHERE source = $1", at.Owner, end).Scan(&past)
		})
		if past || err != nil {
			return err
		}
		if pause(ctx, askAgain) != nil {
			return fmt.Errorf("%s isn't where %s was", at.Standby, at.Owner)
		}
	}
}

// Places asks the owners who has the slots now, grouped by owner and standby. Slots
// without a standby, and those that are fenced, are left out.
func (p Promoter) Places(ctx context.Context, slots []routing.Slot) ([]Place, error) {
	groups := map[[2]string]*Place{}
	for cell := range p.Databases {
		err := p.on(ctx, cell, func(tx pgx.Tx) error {
			rows, err := tx.Query(ctx, `SELECT slot, epoch, coalesce(standby, '') FROM cell.slots
				WHERE slot = ANY ($1::int[]) AND role = 'owner' AND state = 'active' AND standby IS NOT NULL AND incoming IS NULL ORDER BY slot`, slots)
			if err != nil {
				return err
			}
			var slot routing.Slot
			var epoch routing.Epoch
			var standby string
			_, err = pgx.ForEachRow(rows, []any{&slot, &epoch, &standby}, func() error {
				g := groups[[2]string{cell, standby}]
				if g == nil {
					g = &Place{Owner: cell, Standby: standby}
					groups[[2]string{cell, standby}] = g
				}
				g.Slots, g.Epochs = append(g.Slots, slot), append(g.Epochs, epoch)
				return nil
			})
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	var out []Place
	for _, g := range groups {
		out = append(out, *g)
	}
	slices.SortFunc(out, func(a, b Place) int { return strings.Compare(a.Owner+" "+a.Standby, b.Owner+" "+b.Standby) })
	return out, nil
}

// Unmarked is nil when neither the owner nor control has a mark on one of the slots:
// what was sent on before the standby had it would be lost by a promotion.
// ErrUncovered else. Who can't be asked hasn't said so.
func (p Promoter) Unmarked(ctx context.Context, at Place) error {
	var marks []outputcommit.Mark
	if p.Control != nil {
		all, err := p.Control.Marks(ctx, at.Owner)
		if err != nil {
			return err
		}
		for _, m := range all.Marks {
			if !m.Over {
				marks = append(marks, outputcommit.Mark(m.Mark))
			}
		}
	}
	slots := map[routing.Slot]routing.Epoch{}
	for i, s := range at.Slots {
		slots[s] = at.Epochs[i]
	}
	return p.on(ctx, at.Owner, func(tx pgx.Tx) error {
		refused, err := outputcommit.Promotable(ctx, tx, marks, slots)
		for _, s := range slices.Sorted(maps.Keys(refused)) {
			return fmt.Errorf("%w: slot %s: %s", ErrUncovered, s, refused[s])
		}
		return err
	})
}
