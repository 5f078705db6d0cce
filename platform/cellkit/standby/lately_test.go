package standby

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// What was looked at lately is told again, as old as it is; what is older than looks
// ever are is looked at anew.
func TestLately(t *testing.T) {
	t.Parallel()
	pool, err := pgxpool.New(t.Context(), "postgres://127.0.0.1:1/nowhere?connect_timeout=1")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	a := New(Options{Cell: "c1", Pool: pool})
	if _, err := a.Lately(t.Context()); err == nil {
		t.Error("nothing was looked at, and it is told")
	}
	was := []Status{{Source: "c2", AgeMS: 5}, {Source: "c3", AgeMS: -1}}
	for range 20 { // a machine that stands still makes it too old
		a.lately.Store(&looked{was, time.Now().Add(-300 * time.Millisecond)})
		got, err := a.Lately(t.Context())
		if err != nil {
			continue
		}
		if len(got) != 2 || got[0].AgeMS < 305 || got[1].AgeMS != -1 || was[0].AgeMS != 5 {
			t.Errorf("got %+v of %+v", got, was)
		}
		a.lately.Store(&looked{was, time.Now().Add(-7 * time.Second)})
		if _, err := a.Lately(t.Context()); err == nil {
			t.Error("what is seven seconds old is told")
		}
		return
	}
	t.Error("what is a third of a second old is never told")
}
