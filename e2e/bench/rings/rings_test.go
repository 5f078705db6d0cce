package rings

import (
	"fmt"
	"slices"
	"testing"
)

// Every library gives every cell some of the keys, always the same ones, and a
// further cell takes only for itself.
func TestLibrariesOwn(t *testing.T) {
	t.Parallel()
	four, five := []string{"c1", "c2", "c3", "c4"}, []string{"c1", "c2", "c3", "c4", "c5"}
	grown := All(five, 500)
	for i, l := range All(four, 500) {
		again := All(four, 500)[i]
		share := map[string]int{}
		const keys = 20_000
		moved := 0
		for k := range keys {
			key := fmt.Sprintf("key-%d", k)
			owner := l.Owner(key)
			share[owner]++
			if !slices.Contains(four, owner) || again.Owner(key) != owner {
				t.Fatalf("%s: %s belongs to %q", l.Name, key, owner)
			}
			if now := grown[i].Owner(key); now != owner {
				moved++
				if now != "c5" {
					t.Fatalf("%s: %s went from %s to %s", l.Name, key, owner, now)
				}
			}
		}
		if len(share) != len(four) || moved == 0 || moved > keys/2 {
			t.Errorf("%s: shares %v, %d moved to a fifth cell", l.Name, share, moved)
		}
	}
}
