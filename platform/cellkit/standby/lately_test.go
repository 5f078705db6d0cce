package standby

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"

	"example.com/cellmart/platform/cellkit/pg/pgtest"
)

// Slots are told as they were at the last look, if that isn't older than looks ever
// are; positions as they are. A database that doesn't answer is an error.
func TestLately(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	for _, q := range []string{
		"UPDATE cell.slots SET epoch = 1, owner = 'c2', standby = 'c1', role = CASE WHEN slot BETWEEN 1 AND 3 THEN 'standby' ELSE 'none' END",
		`INSERT INTO cell.watermarks (source, position, incarnation, lsn) VALUES ('c2', '{"state": "live"}', 'i', '0/77')`,
	} {
		if _, err := db.Super.Exec(t.Context(), q); err != nil {
			t.Fatal(err)
		}
	}
	nowhere, err := pgxpool.New(t.Context(), "postgres://127.0.0.1:1/nowhere?connect_timeout=1")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nowhere.Close)
	a := New(Options{Cell: "c1", Pool: db.Super, Sources: map[string]func() (*nats.Conn, error){"c2": nil}})
	was := []Status{{Source: "c2", LSN: 1, AgeMS: 5, InSync: 2, InSyncSlots: [][3]int64{{1, 2, 1}}, Reasons: map[string]int{}}}
	lately := func(age time.Duration) Status {
		t.Helper()
		a.lately.Store(&looked{was, time.Now().Add(-age)})
		got, err := a.Lately(t.Context())
		if err != nil || len(got) != 1 {
			t.Fatalf("got %v, %v", got, err)
		}
		return got[0]
	}
	if got := lately(-time.Hour); got.InSync != 2 || len(got.InSyncSlots) != 1 || got.LSN != 0x77 || got.State != "live" || got.AgeMS != -1 {
		t.Errorf("soon after a look: %+v, want its slots at the position that is", got)
	}
	if got := lately(7 * time.Second); got.InSync != 0 || got.Copying != 3 || got.LSN != 0x77 {
		t.Errorf("long after a look: %+v, want what is", got)
	}
	a.o.Pool = nowhere
	a.lately.Store(&looked{was, time.Now().Add(time.Hour)})
	if got, err := a.Lately(t.Context()); err == nil {
		t.Errorf("the database is gone, and %v is told", got)
	}
}
