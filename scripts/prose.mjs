// Check the English of the documents with Harper, offline: `make prose`, before each release.
//
//     node scripts/prose.mjs FOLDER [--lower] [FILE ...]
//
// FOLDER has the package harper.js. A file with more findings of a kind than scripts/prose.json has is listed, with
// exit code 1; --lower writes the counts that are lower now.
import { execFileSync } from "node:child_process";
import { readFileSync, writeFileSync } from "node:fs";
import { resolve } from "node:path";

const KINDS = ["Agreement", "Grammar", "Readability"];
const COUNTS = "scripts/prose.json";
const [folder, ...given] = process.argv.slice(2);
const lower = given.includes("--lower");
const dist = resolve(folder, "dist");
const { LocalLinter, Dialect } = await import(`${dist}/index.js`);
const { binaryInlined } = await import(`${dist}/binaryInlined.js`);
const linter = new LocalLinter({ binary: binaryInlined, dialect: Dialect.British });
await linter.setup();

const named = given.filter((name) => name !== "--lower");
const files = named.length
  ? named
  : execFileSync("git", ["ls-files", "README.md", "CHANGELOG.md", "docs/*.md", "walkit/format/*.md"], { encoding: "utf8" })
      .trim()
      .split("\n");
const counts = JSON.parse(readFileSync(COUNTS, "utf8"));
let worse = 0;
for (const file of files) {
  const found = (await linter.lint(readFileSync(file, "utf8"), { language: "markdown" })).filter((lint) =>
    KINDS.includes(lint.lint_kind()),
  );
  const known = counts[file] ?? 0;
  if (found.length > known) {
    worse += 1;
    console.log(`${file}: ${found.length} findings, not ${known}`);
    for (const lint of found) console.log(`  ${lint.lint_kind()}: ${lint.get_problem_text()}: ${lint.message()}`);
  } else if (lower) {
    counts[file] = found.length;
  }
}
if (lower) {
  const kept = Object.entries(counts).filter(([, count]) => count > 0);
  writeFileSync(COUNTS, `${JSON.stringify(Object.fromEntries(kept.sort()), null, 1)}\n`);
}
process.exit(worse ? 1 : 0);
