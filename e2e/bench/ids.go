package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bwmarrin/snowflake"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/sony/sonyflake/v2"

	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/services/idgen/idgenapi"
)

const (
	idRounds = 5       // in turn; the best of each counts, since whatever else runs only adds time
	idBatch  = 200_000 // IDs of a round
	idCores  = 2
)

// idLines measures an ID in process, an order number, and a lease on a real
// Postgres that flushes.
func idLines(ctx context.Context, log io.Writer) ([]row, error) {
	rows, err := nextLines(ctx, idBatch)
	if err != nil {
		return nil, err
	}
	numbers, err := numberLines(ctx, idBatch)
	if err != nil {
		return nil, err
	}
	leases, err := withDemo(ctx, log, func(d demo) ([]row, error) { return leaseLines(ctx, d, 3*time.Second) })
	return append(append(rows, numbers...), leases...), err
}

// stocked is a client with one range of all there is: at this rate real ones,
// 100,000/s, are gone at once. It believes it unchecked; Next is as always.
func stocked(ctx context.Context) (*id.Client, error) {
	c := id.NewClient(id.Options{
		Kinds: []string{idgenapi.User, idgenapi.Transfer, idgenapi.Address, idgenapi.Order},
		Lease: func(context.Context, string, int64, int64) (int64, int64, error) { return 1, id.MaxSeq, nil },
		Check: func(id.Grant) error { return nil },
	})
	go func() { _ = c.Run(ctx) }() // ends with ctx
	return c, c.Wait(ctx, idgenapi.Order)
}

// contest is one way to make an ID; op makes n of them.
type contest struct {
	name string
	op   func(n int) error
	best float64 // ns per ID
}

// inTurn runs all in turn.
func inTurn(ctx context.Context, n int, all []*contest) error {
	for _, c := range all {
		c.best = math.Inf(1)
	}
	for range idRounds {
		for _, c := range all {
			if err := ctx.Err(); err != nil {
				return err
			}
			start := time.Now()
			if err := c.op(n); err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			c.best = min(c.best, float64(time.Since(start).Nanoseconds())/float64(n))
		}
	}
	return nil
}

// loop makes an op of what makes one; a zero is none.
func loop[T comparable](one func() (T, error)) func(int) error {
	return func(n int) error {
		var zero T
		for range n {
			v, err := one()
			if err != nil {
				return err
			}
			if v == zero {
				return errors.New("gave nothing")
			}
		}
		return nil
	}
}

func nextLines(ctx context.Context, n int) ([]row, error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	ids, err := stocked(ctx)
	if err != nil {
		return nil, err
	}
	node, err := snowflake.NewNode(1)
	if err != nil {
		return nil, err
	}
	sony, err := sonyflake.New(sonyflake.Settings{MachineID: func() (int, error) { return 1, nil }})
	if err != nil {
		return nil, err
	}
	var counter atomic.Int64
	ours := &contest{name: "ours", op: func(n int) error {
		for range n {
			if _, err := ids.Next(idgenapi.Order, 7); err != nil {
				return err
			}
		}
		return nil
	}}
	add := &contest{name: "atomic add", op: func(n int) error {
		for range n {
			counter.Add(1)
		}
		return nil
	}}
	flake := &contest{name: "bwmarrin/snowflake", op: loop(func() (snowflake.ID, error) { return node.Generate(), nil })}
	v7 := &contest{name: "UUIDv7", op: loop(uuid.NewV7)}
	both := &contest{name: "ours, two cores", op: twice(ours.op)}
	adds := &contest{name: "atomic add, two cores", op: twice(add.op)}
	if err := inTurn(ctx, n, []*contest{ours, add, flake, v7, both, adds}); err != nil {
		return nil, err
	}
	slow := &contest{name: "sonyflake v2", op: loop(sony.NextID)} // sleeps when its 256 of 10 ms are used
	if err := inTurn(ctx, max(n/200, 1), []*contest{slow}); err != nil {
		return nil, err
	}
	note := fmt.Sprintf("one kind, one client; best of %d rounds of %d, in turn", idRounds, n)
	atMost := func(limit float64) func(float64) bool { return func(r float64) bool { return r <= limit } }
	rows := []row{
		compare("ids/next", "ns/op", ours.best, add.best, "<= 3 x an atomic add", atMost(3), note),
		compare("ids/next/snowflake", "ns/op", ours.best, flake.best, "<= 1/10 of bwmarrin/snowflake", atMost(0.1), note),
		compare("ids/next/uuidv7", "ns/op", ours.best, v7.best, "<= 1/10 of UUIDv7", atMost(0.1), "google/uuid; "+note),
		compare("ids/next/sonyflake", "ns/op", ours.best, slow.best, shown, nil, "sony/sonyflake/v2, its generator as it comes: 256 in 10 ms"),
	}
	perSecond := compare("ids/next/two-cores", "million/s", idCores*1e3/both.best, idCores*1e3/adds.best, ">= 50", nil,
		"both goroutines take of one kind; beside it an atomic add that two share; "+note)
	reached := *perSecond.Ours >= 50
	perSecond.OK = &reached
	if runtime.NumCPU() < idCores || runtime.GOMAXPROCS(0) < idCores {
		perSecond.OK, perSecond.Reason = nil, "there are no two cores"
	}
	allocs := compare("ids/next/allocs", "allocs/op", testing.AllocsPerRun(1000, func() { _ = ours.op(1) }), testing.AllocsPerRun(1000, func() { _ = add.op(1) }), "0", nil, "")
	none := *allocs.Ours == 0
	allocs.OK = &none
	return append(rows, perSecond, allocs), nil
}

// twice runs an op on two cores at once; its time is that of the slower.
func twice(op func(int) error) func(int) error {
	return func(n int) error {
		var errs [idCores]error
		var wg sync.WaitGroup
		for i := range errs {
			wg.Go(func() { errs[i] = op(n) })
		}
		wg.Wait()
		return errors.Join(errs[:]...)
	}
}

// numberLines are order numbers beside the plain decimal form.
func numberLines(ctx context.Context, n int) ([]row, error) {
	numbers, err := id.NewNumbers([]byte("a key of sixteen bytes"))
	if err != nil {
		return nil, err
	}
	at := id.Make(id.SeqAt(time.Now()), 77, false)
	text, decimal := numbers.Encode(at), at.String()
	all := []*contest{
		{name: "encode", op: loop(func() (string, error) { return numbers.Encode(at), nil })},
		{name: "decimal", op: loop(func() (string, error) { return strconv.FormatInt(int64(at), 10), nil })},
		{name: "decode", op: loop(func() (id.ID, error) { return numbers.Decode(text) })},
		{name: "parse decimal", op: loop(func() (int64, error) { return strconv.ParseInt(decimal, 10, 64) })},
	}
	if err := inTurn(ctx, n, all); err != nil {
		return nil, err
	}
	line := func(name string, ours, base *contest) row {
		r := compare(name, "ns/op", ours.best, base.best, "< 100 ns", nil, fmt.Sprintf("baseline: %s, which keeps nothing secret and checks nothing; best of %d", base.name, idRounds))
		ok := ours.best < 100
		r.OK = &ok
		return r
	}
	return []row{line("ids/number/encode", all[0], all[1]), line("ids/number/decode", all[2], all[3])}, nil
}

// leaseLines has callers lease of one kind over HTTP, beside as many who commit an
// UPDATE ... RETURNING of one row on the same server.
func leaseLines(ctx context.Context, d demo, window time.Duration) ([]row, error) {
	super, err := pgx.Connect(ctx, d.state.IDGenPG)
	if err != nil {
		return nil, err
	}
	defer super.Close(context.WithoutCancel(ctx))
	var fsync, synchronous string
	if err := super.QueryRow(ctx, "SELECT current_setting('fsync'), current_setting('synchronous_commit')").Scan(&fsync, &synchronous); err != nil {
		return nil, err
	}
	if fsync != "on" || synchronous != "on" {
		return nil, fmt.Errorf("fsync is %s and synchronous_commit %s: nothing would be measured", fsync, synchronous)
	}
	if _, err := super.Exec(ctx, "CREATE TABLE public.plain (one bool PRIMARY KEY, hi bigint NOT NULL); INSERT INTO public.plain VALUES (true, 0)"); err != nil {
		return nil, err
	}
	p, err := d.state.Process("global/idgen")
	if err != nil {
		return nil, err
	}
	var rows []row
	for _, callers := range []int{16, 1} {
		var ours, plain float64
		for range idRounds {
			got, err := rate(ctx, callers, window, leaser("http://"+p.Env["IDGEN_ADDR"]))
			if err != nil {
				return nil, err
			}
			ours = max(ours, got)
			if got, err = rate(ctx, callers, window, updater(d.state.IDGenPG)); err != nil {
				return nil, err
			}
			plain = max(plain, got)
		}
		name, goal, holds := "ids/lease", ">= 1/2 of plain commits", func(r float64) bool { return r >= 0.5 }
		if callers == 1 {
			name, goal, holds = "ids/lease/one-caller", shown, nil
		}
		rows = append(rows, compare(name, "commits/s", ours, plain, goal, holds, fmt.Sprintf(
			"%d callers, one kind, over HTTP; baseline: as many connections, UPDATE ... RETURNING of one row, same server, fsync on; best of %d times %v, in turn", callers, idRounds, window)))
	}
	return rows, nil
}

// maker makes, for one caller, what it does again and again, and its end.
type maker func(ctx context.Context) (one func(context.Context) error, end func(), err error)

func leaser(url string) maker {
	return func(context.Context) (func(context.Context) error, func(), error) {
		c := idgenapi.NewClient(url, nil)
		c.Holder = "bench"
		return func(ctx context.Context) error {
			_, _, err := c.Lease(ctx, idgenapi.Deposit, 0, 1)
			return err
		}, func() {}, nil
	}
}

func updater(dsn string) maker {
	return func(ctx context.Context) (func(context.Context) error, func(), error) {
		c, err := pgx.Connect(ctx, dsn)
		if err != nil {
			return nil, nil, err
		}
		return func(ctx context.Context) error {
			var hi int64
			return c.QueryRow(ctx, "UPDATE public.plain SET hi = hi + 1 RETURNING hi").Scan(&hi)
		}, func() { _ = c.Close(context.WithoutCancel(ctx)) }, nil
	}
}

// rate is how often callers together do it in a second.
func rate(ctx context.Context, callers int, window time.Duration, make maker) (float64, error) {
	var done atomic.Int64
	var wg sync.WaitGroup
	failed := errSet{}
	start := time.Now()
	for range callers {
		one, end, err := make(ctx)
		if err != nil {
			return 0, err
		}
		wg.Go(func() {
			defer end()
			for time.Since(start) < window {
				if err := one(ctx); err != nil {
					failed.add(err)
					return
				}
				done.Add(1)
			}
		})
	}
	wg.Wait()
	return float64(done.Load()) / time.Since(start).Seconds(), failed.err()
}

// errSet keeps the first error.
type errSet struct {
	mu    sync.Mutex
	first error
}

func (e *errSet) add(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.first == nil {
		e.first = err
	}
}

func (e *errSet) err() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.first
}
