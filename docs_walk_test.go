package cellmart

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// walkBlock gives the shell lines of the code block that follows the line
// "## The walk"; comments and empty lines are left out.
func walkBlock(readme string) []string {
	_, rest, _ := strings.Cut(readme, "\n## The walk\n")
	_, rest, _ = strings.Cut(rest, "\n```sh\n")
	block, _, _ := strings.Cut(rest, "\n```\n")
	var out []string
	for line := range strings.SplitSeq(block, "\n") {
		if line = strings.TrimRight(line, " "); line != "" && !strings.HasPrefix(line, "#") {
			out = append(out, line)
		}
	}
	return out
}

// S-W10: what the README tells a newcomer to type is what scripts/walk runs, in
// the same order, so running the script shows that the README is right.
func TestScenario_W10_WalkIsTheReadmes(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	script, err := os.ReadFile("scripts/walk")
	if err != nil {
		t.Fatal(err)
	}
	block := walkBlock(string(readme))
	if len(block) < 15 {
		t.Fatalf("the README's walk has %d lines: it isn't where this test looks", len(block))
	}
	rest := strings.Split(string(script), "\n")
	for _, line := range block {
		at := slices.Index(rest, line)
		if at < 0 {
			t.Errorf("the README's walk has a line that scripts/walk doesn't run there:\n%s", line)
			continue
		}
		rest = rest[at+1:]
	}
}

func TestWalkBlockIsRead(t *testing.T) {
	t.Parallel()
	got := walkBlock("# X\n```sh\nno\n```\n## The walk\ntext\n```sh\n# why\na 1\n\n  b\n```\n```sh\nc\n```\n")
	if want := []string{"a 1", "  b"}; !slices.Equal(got, want) {
		t.Errorf("walkBlock = %q, want %q", got, want)
	}
}
