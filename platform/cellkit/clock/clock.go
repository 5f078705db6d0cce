package clock

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"
)

const (
	// Most is how far a clock can be set wrong: two days are more than any check
	// of clocks allows.
	Most = 48 * time.Hour

	firstAsk = 500 * time.Millisecond // a start doesn't wait longer for the agent
	again    = 250 * time.Millisecond // after the agent didn't answer
	hold     = 20 * time.Second       // how long an agent keeps a question
)

// Clock shows the machine's time, plus the offset. The zero Clock has none.
type Clock struct{ offset atomic.Int64 }

// Now is the wall time. It has no monotonic reading: it is a clock that can be set.
func (c *Clock) Now() time.Time { return time.Now().Round(0).Add(c.Offset()) }

// Offset is how far the clock is set wrong.
func (c *Clock) Offset() time.Duration { return time.Duration(c.offset.Load()) }

func (c *Clock) set(d time.Duration) { c.offset.Store(int64(d)) }

// state is the wire and file format.
type state struct {
	OffsetMS int64 `json:"offset_ms"`
}

func (s state) offset() time.Duration { return time.Duration(s.OffsetMS) * time.Millisecond }

// Follow gives a clock that follows the agent's offset until ctx ends. It has the
// offset of now when the agent answers soon. Without an agent it is the machine's.
func Follow(ctx context.Context, agent string, log *slog.Logger) *Clock {
	c := &Clock{}
	if agent == "" {
		return c
	}
	f := &follower{clock: c, log: log, url: agent + "/clock", http: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 1}}}
	first, cancel := context.WithTimeout(ctx, firstAsk)
	defer cancel()
	_ = f.ask(first, "") // asked again right away
	go f.run(ctx)
	return c
}

type follower struct {
	clock *Clock
	log   *slog.Logger
	url   string
	http  *http.Client
}

func (f *follower) run(ctx context.Context) {
	defer f.http.CloseIdleConnections()
	for ctx.Err() == nil {
		one, cancel := context.WithTimeout(ctx, hold+5*time.Second)
		err := f.ask(one, fmt.Sprintf("?have_ms=%d", f.clock.Offset().Milliseconds()))
		cancel()
		if err == nil {
			continue
		}
		select {
		case <-ctx.Done():
		case <-time.After(again):
		}
	}
}

// ask takes the agent's offset, which with have_ms comes when it is another one.
func (f *follower) ask(ctx context.Context, query string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, f.url+query, nil)
	if err != nil {
		return err
	}
	res, err := f.http.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	var s state
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("%s says %s", f.url, res.Status)
	}
	if err := json.NewDecoder(io.LimitReader(res.Body, 1<<10)).Decode(&s); err != nil {
		return err
	}
	if was := f.clock.Offset(); was != s.offset() {
		f.clock.set(s.offset())
		f.log.Warn("the clock was set", "was", was.String(), "is", s.offset().String())
	}
	return nil
}
