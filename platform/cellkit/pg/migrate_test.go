package pg_test

import (
	"fmt"
	"io/fs"
	"testing"

	"example.com/cellmart/platform/cellkit/pg"
)

// The steps are numbered without a gap: goose refuses one that is put into a gap
// of a database that has later ones.
func TestMigrationsHaveNoGap(t *testing.T) {
	t.Parallel()
	files, err := fs.Glob(pg.CellMigrations().FS, "*.sql")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for i, name := range files {
		if want := fmt.Sprintf("%04d_", i+1); name[:len(want)] != want {
			t.Errorf("migration %d is %s", i+1, name)
		}
	}
}
