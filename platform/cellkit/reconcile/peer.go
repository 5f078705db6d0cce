package reconcile

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"example.com/cellmart/platform/cellkit/errs"
)

// awayError says that a cell couldn't be asked anything at all: that cost nothing.
type awayError struct {
	cell string
	error
}

func (e awayError) Unwrap() error { return e.error }

func away(err error) bool { return errors.As(err, new(awayError)) }

// isAway is that of an error that an agent gave.
func isAway(err error, cell string) bool {
	var e *errs.Error
	return errors.As(err, &e) && e.Cell == cell
}

// peer is a cell that can be asked, this one too.
type peer struct {
	name string
	ask  func(ctx context.Context, op string, q question, out any) error
}

// span finds out, soon, whether the cell answers at all.
func (p peer) span(ctx context.Context) (s span, err error) {
	ctx, cancel := context.WithTimeout(ctx, spanMost)
	defer cancel()
	if err = p.ask(ctx, opSpan, question{}, &s); err != nil {
		err = awayError{p.name, err}
	}
	return s, err
}

func caller(name string, c Caller) peer {
	return peer{name, func(ctx context.Context, op string, q question, out any) error {
		return c.Admin(ctx, "POST", "/reconcile/"+op, q, out)
	}}
}

func (r *Reconciler) other(to string) (peer, error) {
	if to == r.o.Cell {
		return peer{to, func(ctx context.Context, op string, q question, out any) error {
			got, err := r.answer(ctx, op, q)
			if err != nil {
				return err
			}
			b, err := json.Marshal(got)
			if err != nil {
				return err
			}
			return json.Unmarshal(b, out)
		}}, nil
	}
	c, ok := r.o.Peers[to]
	if !ok {
		return peer{}, awayError{to, fmt.Errorf("%s knows no way to the agent of %s", r.o.Cell, to)}
	}
	return caller(to, c), nil
}
