package clienttest_test

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// TestPage finds the code of docs/clients.md in the tests, where it is compiled and run, and the versions that the tests
// use on the page.
func TestPage(t *testing.T) {
	t.Parallel()
	read := func(name string) string {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	page := read("../docs/clients.md")
	code := read("retry_test.go") + read("cors_test.go")
	blocks := regexp.MustCompile("(?ms)^```go\n(.*?)^```$").FindAllStringSubmatch(page, -1)
	if len(blocks) != 2 {
		t.Errorf("found %d Go blocks, want 2", len(blocks))
	}
	for _, block := range blocks {
		if !strings.Contains(code, block[1]) {
			t.Errorf("no test has this block of the page:\n%s", block[1])
		}
	}
	npm := regexp.MustCompile(`"(axios|axios-retry|got|ky)": "(.*)"`).FindAllStringSubmatch(read("testdata/node/package.json"), -1)
	modules := regexp.MustCompile(`/(go-retryablehttp|resty)(?:/v2)? v(.*)`).FindAllStringSubmatch(read("go.mod"), -1)
	versions := append(npm, modules...)
	if len(versions) != 6 {
		t.Errorf("found %d versions, want 6", len(versions))
	}
	for _, v := range versions {
		if want := v[1] + " " + v[2]; !strings.Contains(page, want) {
			t.Errorf("the page does not have %s", want)
		}
	}
}
