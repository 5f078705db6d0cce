package userapi

import (
	"strings"
	"testing"
)

func TestCanonicalPhone(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"+8613800000001": "8613800000001", "008613800000001": "8613800000001", " +86 138-0000-0001 ": "8613800000001",
		"+1 (415) 555.0100": "14155550100", "+12345678": "12345678", "+123456789012345": "123456789012345",
		"13800000001": "", "8613800000001": "", "": "", "+": "", "00": "", "+1234567": "", "+1234567890123456": "", "+0123456789": "",
		"+86138x0000001": "", "+86+138000000": "", "+٨٦١٣٨٠٠٠٠٠٠١": "", "++8613800000001": "", "+" + strings.Repeat(" ", 50) + "8613800000001": "",
	} {
		got, ok := CanonicalPhone(in)
		if ok != (want != "") || ok && got != want {
			t.Errorf("CanonicalPhone(%q) = %q, %v, want %q", in, got, ok, want)
		}
		if ok {
			if again, ok := CanonicalPhone("+" + got); !ok || again != got {
				t.Errorf("the canonical form of %q isn't stable: %q", in, again)
			}
		}
	}
}
