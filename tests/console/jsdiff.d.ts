// What the console uses of jsdiff, beside whose vendored scripts the check of types puts this.
type Change = { value: string; added?: boolean; removed?: boolean };
type Diff = (before: string, after: string, options?: { timeout?: number }) => Change[] | undefined;
export const diffLines: Diff;
export const diffWordsWithSpace: Diff;
